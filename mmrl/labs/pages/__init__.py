"""Small tasks on web pages, made from a seed and judged in the page itself; there is no model of its own."""
