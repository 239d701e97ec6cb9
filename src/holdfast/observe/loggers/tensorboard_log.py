"""Event files for TensorBoard, below `tensorboard/` of the run directory."""

import time
from collections.abc import Sequence

from tensorboard.compat.proto.event_pb2 import Event as Record
from tensorboard.compat.proto.event_pb2 import SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from holdfast.observe.loggers.logger import LogPoint, LogRun

FOLDER = "tensorboard"


class TensorBoardLog:
    id = ""

    def __init__(self, run: LogRun) -> None:
        self._writer = EventFileWriter(str(run.run_dir / FOLDER))
        if run.run > 1:
            # Readers drop what an earlier file has from this step on.
            start = SessionLog(status=SessionLog.START)
            self._add(run.next_step + 1, session_log=start)
        lines = [f"    {name} = {value!r}" for name, value in run.settings.items()]
        self._add(run.next_step, summary=_text("job", "\n".join(lines)))

    def write(self, points: Sequence[LogPoint]) -> None:
        for point in points:
            scalars = [Summary.Value(tag=tag, simple_value=v) for tag, v in point.values.items()]
            if scalars:
                self._add(point.step, summary=Summary(value=scalars))
            if point.text:
                self._add(point.step, summary=_text("events", point.text))
        self._writer.flush()

    def close(self, outcome: str) -> None:
        self._writer.close()

    def _add(self, step: int, **content: object) -> None:
        self._writer.add_event(Record(wall_time=time.time(), step=step, **content))


def _text(tag: str, text: str) -> Summary:
    content = SummaryMetadata.PluginData(plugin_name="text")
    tensor = TensorProto(
        dtype=DT_STRING,
        string_val=[text.encode()],
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
    )
    metadata = SummaryMetadata(plugin_data=content)
    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=tensor)])
