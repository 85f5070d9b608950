"""A converted checkpoint against the original, layer by layer, without a server."""
