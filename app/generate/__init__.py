"""From a request that any route has parsed to the text that comes of it."""
