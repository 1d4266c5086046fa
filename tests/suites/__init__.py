"""What others wrote to call such a service, run against this one: `python -m tests.suites`.

Not part of the tests: it installs packages, and says what they find. Each suite is a file in
`clients/`, run unchanged in an environment of its own, which holds the package that it is about.
"""
