"""What a device has done, as a host far ahead of it can know."""

from holdfast.engine.transport.device_log import MAX_OPEN, DeviceLog


class Operation:
    def __init__(self):
        self.done = False

    def is_done(self):
        return self.done


def test_only_what_has_ended_without_a_gap_counts():
    log, operations = DeviceLog(), [Operation() for _ in range(4)]
    for operation in operations:
        log.add(operation)
    assert (log.length, log.num_ended()) == (4, 0)
    operations[1].done = True
    assert log.num_ended() == 0
    operations[0].done = True
    assert (log.length, log.num_ended()) == (4, 2)


def test_what_ends_after_the_groups_were_broken_off_never_counts():
    log, first, second = DeviceLog(), Operation(), Operation()
    log.add(first)
    log.add(second)
    first.done = True
    log.close()
    second.done = True
    assert (log.length, log.num_ended()) == (2, 1)


def test_a_host_waits_for_the_oldest_of_too_many():
    log, operations = DeviceLog(), [Operation() for _ in range(MAX_OPEN + 2)]
    for operation in operations[:MAX_OPEN]:
        log.add(operation)
    assert log.overdue() is None
    for operation in operations[MAX_OPEN:]:
        log.add(operation)
    assert log.overdue() is operations[0]
    operations[0].done = True
    assert log.overdue() is operations[1]
    operations[1].done = True
    assert log.overdue() is None


def test_what_was_broken_off_is_not_asked_again():
    class Asked(Operation):
        times = 0

        def is_done(self):
            self.times += 1
            return False

    log, operation = DeviceLog(), Asked()
    log.add(operation)
    log.close()
    log.close()
    log.num_ended()
    assert operation.times == 1
