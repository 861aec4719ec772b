"""What happened, and the seams between the parts. Depends on msgspec and the standard library alone."""
