"""What people look at: one view, rendered for the terminal and as a page that works offline."""
