"""The same work, written for each peer as its manual says. These modules run in the peers' own virtual environment."""
