"""What Paddle makes of a parameter server's variables: one line of JSON."""

import json

import paddle
from paddle.distributed import fleet

# Parameter servers are for static graphs.
paddle.enable_static()
fleet.init(is_collective=False)
index = fleet.server_index() if fleet.is_server() else fleet.worker_index()
print(
    "ROLE",
    json.dumps([fleet.is_server(), fleet.is_worker(), index]),
    json.dumps([fleet.server_endpoints(), fleet.worker_endpoints()]),
)
