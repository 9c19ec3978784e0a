from t5x_lite.serve.server import CONTENT_TYPE, Counts


def test_the_text_of_prometheus():
    counts = Counts(num_waiting=lambda: 7, is_ready=lambda: True)
    counts.request("predict", status=200, seconds=0.02)
    counts.request("predict", status=503, seconds=0.001)
    counts.batch("predict", rows=3, size=4, seconds=0.1)
    lines = counts.text().decode().splitlines()
    for line in (
        't5x_lite_requests_total{endpoint="predict",status="200"} 1.0',
        't5x_lite_requests_total{endpoint="predict",status="503"} 1.0',
        't5x_lite_texts_total{endpoint="predict"} 3.0',
        't5x_lite_padding_rows_total{endpoint="predict"} 1.0',
        't5x_lite_request_seconds_bucket{endpoint="predict",le="0.01"} 0.0',
        't5x_lite_request_seconds_bucket{endpoint="predict",le="0.025"} 1.0',
        't5x_lite_request_seconds_count{endpoint="predict"} 1.0',
        't5x_lite_batch_rows_bucket{endpoint="predict",le="4.0"} 1.0',
        "t5x_lite_queue_texts 7.0",
        "t5x_lite_ready 1.0",
    ):
        assert line in lines
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")


def test_two_servers_count_for_themselves():
    first, second = (Counts(num_waiting=lambda: 0, is_ready=lambda: False) for _ in range(2))
    first.request("predict", status=200, seconds=0.1)
    assert b'status="200"' not in second.text()
