"""What is decided about snapshots: which versions are whole, which is restored, copied and written.

coordination.py  the room's front: what agents hold goes in, messages to agents come out
copy_rounds.py   which version nodes copy for each other
protection.py    when it is told what the job is protected against
placing.py       when workers are told what things take, to place their copies by it
messages.py      what agents and the coordinator say to each other about snapshots
"""
