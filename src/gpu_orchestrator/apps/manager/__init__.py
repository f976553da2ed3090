"""The cluster manager: takes tasks over HTTP, places them on the GPUs of its workers, and loses none."""
