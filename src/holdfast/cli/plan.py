"""`holdfast plan`."""

from cyclopts import App

app = App(name="plan", help="Show and check plans.")
