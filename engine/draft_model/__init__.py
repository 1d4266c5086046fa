"""A small model beside the one that answers, which guesses what that one will say."""
