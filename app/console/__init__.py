"""What an operator sees in a browser: static pages that use `/admin` as anybody may."""
