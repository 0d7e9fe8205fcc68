"""The atlas in a browser: a server on the loopback address, and a page that pans and zooms a matrix as a map."""

from regard.web.app import make_app
from regard.web.reader import ModelReader, Reader
from regard.web.server import bind, make_server, serve
from regard.web.sheet import Sheet
from regard.web.shelf import Shelf
from regard.web.sinks import Sink, find_sinks

__all__ = ["ModelReader", "Reader", "Sheet", "Shelf", "Sink", "bind", "find_sinks", "make_app", "make_server", "serve"]
