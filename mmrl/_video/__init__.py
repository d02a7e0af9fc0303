"""Reading of video files by the libraries that can."""
