"""What environments share: a browser, its pages, actions and keys, gymnasium."""
