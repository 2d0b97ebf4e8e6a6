"""The second command at once: what a person calls is forked from a server of theirs that has imported torch.

events.py    leaves a server running, by `warm=true`
client.py    hands a command over
standing.py  stands for it at the terminal until it has ended
server.py    forks the process that runs it, and one that watches over both
"""
