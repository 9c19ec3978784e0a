"""Pages to look at: a run's curves (`runs`), C4's funnel (`c4`), and the HTML and SVG of both."""
