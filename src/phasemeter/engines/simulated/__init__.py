"""An engine of known truth: in process (real or virtual time) and as a real server on loopback."""
