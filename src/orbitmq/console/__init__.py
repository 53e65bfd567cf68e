"""The web page: what `orbitmq` shows in a terminal, in a browser. It calls `admin/` and knows nothing that `admin/` does not.

    app.py        the addresses, and the server that serves them
    doors.py      who may come in: a token, a cookie, a token in each form
    answers.py    a value as a page or as JSON; a failure as a page that names cause and cure
    looking.py    pages
    changing.py   forms: only with `--allow-changes`

Every page is JSON with `Accept: application/json`, under the field names of the command's `-o json`. Nothing is fetched from
elsewhere: no fonts, no scripts, no build.

Java: the RocketMQ Dashboard, a program of its own
"""
