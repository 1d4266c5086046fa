"""One model in several processes: each has a part of every layer, and the first one leads."""
