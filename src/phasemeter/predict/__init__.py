"""From measured runs to times nobody has measured yet: fit, ask, what if. Pure: no clock, no network, no torch."""
