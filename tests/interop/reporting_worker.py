"""What the compared launchers start: tells the test its environment and waits for its word.

Servers and heter workers are ended by their launcher when the trainers are done, so nobody
goes before everybody has been heard.
"""

import json
import os
import socket

with socket.create_connection(("127.0.0.1", int(os.environ["REPORT_TO"]))) as connection:
    connection.sendall(json.dumps(dict(os.environ)).encode() + b"\n")
    connection.recv(1)
