"""Who asked: consent grants, an inbox, and the surfaces people look at. It costs nothing where unused."""
