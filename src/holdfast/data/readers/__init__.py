"""One file per format of documents that have to be prepared, behind one protocol (`reader.py`)."""
