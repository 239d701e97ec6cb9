"""`holdfast agent`: this host joins a job.

Only the command line is here; what it does is imported when it runs.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

Label = Annotated[
    str,
    Parameter(
        help="What tells this host apart, so that it is the same node when it comes back; "
        "otherwise its name and address.",
        show_default=False,
    ),
]
LeaveAfter = Annotated[
    float,
    Parameter(
        help="Stay so long after SIGTERM: where a scheduler ends a whole job, its last "
        "checkpoint needs the nodes."
    ),
]


def agent(
    *,
    join: Annotated[
        str,
        Parameter(
            help="The job's rendezvous, as in net.rendezvous: dir:/shared/job or "
            "etcd://HOST:PORT/NAME."
        ),
    ],
    host: Annotated[
        str, Parameter(help="The address of this host for the others.", show_default=False)
    ] = "",
    interface: Annotated[
        str, Parameter(help="Its interface, instead of an address.", show_default=False)
    ] = "",
    name: Annotated[
        str, Parameter(help="Which node it is, like n2; otherwise any.", show_default=False)
    ] = "",
    label: Label = "",
    folder: Annotated[
        Path, Parameter(help="Where logs of this host are written, in a folder of the node.")
    ] = Path("holdfast-agent"),
    wait_s: Annotated[float, Parameter(help="For the job to begin, and to need a host.")] = 600.0,
    leave_after_s: LeaveAfter = 0.0,
    tls_cert: Annotated[
        str, Parameter(help="The job's certificate, if it has one.", show_default=False)
    ] = "",
    tls_key: Annotated[str, Parameter(help="Its key: hosts show both.", show_default=False)] = "",
) -> int:
    """Run nodes of a job on this host, until the job is over.

    The job's secret is read from the rendezvous, or from HOLDFAST_SECRET. A host that is not needed
    waits, and takes the place of one that is lost. SIGTERM and Ctrl-C end the node.
    """
    from holdfast.cli.run_job import show_lines
    from holdfast.runtime.agent.join import JoinOptions
    from holdfast.runtime.agent.join import join as join_job
    from holdfast.runtime.wire.tls import TlsFiles

    options = JoinOptions(
        rendezvous=join,
        address=host,
        interface=interface,
        node=name,
        label=label,
        folder=folder,
        wait_s=wait_s,
        leave_after_s=leave_after_s,
        tls=TlsFiles(tls_cert, tls_key),
    )
    return join_job(options, lambda line: show_lines([line]))
