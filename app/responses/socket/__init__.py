"""The Responses API over one WebSocket."""
