"""One folder an op. Folders never import each other."""
