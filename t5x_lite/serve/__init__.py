"""HTTP server for a checkpoint: parsing, batching, limits and responses.

    t5x_lite.serve.batching     texts of many requests -> batches of few static shapes, in a thread
    t5x_lite.serve.batching     bytes -> a checked JSON object; limits of a request, and errors
    t5x_lite.serve.app          ASGI application: endpoints, health, metrics, web page
    t5x_lite.serve.server       HTTP connections with time limits, and Prometheus counters
    t5x_lite.serve.server      the command `t5x-lite serve`, from start to shutdown

The package does not depend on models: `t5x_lite.serve.endpoints` has the table of endpoints.
Starlette, uvicorn and prometheus_client (extra `serve`) are imported in app, server and serving,
which only the command `serve` imports.
"""
