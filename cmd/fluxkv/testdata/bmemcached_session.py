"""A session of python-binary-memcached, a client by other authors.

Arguments: host:port, and the name of a part. Parts:
  all      set, get, delete, flags, CAS, expiry, many at once, large values,
           flush, statistics
  store    leaves documents behind
  recover  finds what store left, after a restart
"""
import sys
import time

import bmemcached

address, part = sys.argv[1], sys.argv[2]
client = bmemcached.Client((address,), socket_timeout=20)


def check(what, got, want):
    if got != want:
        raise SystemExit("%s: got %r, want %r" % (what, got, want))


# The client picks the flags by type: text 16, integer 2, long 4, pickle 1,
# compressed 8. A flag that is lost comes back as the wrong type.
DOCUMENTS = {
    "text": "a short text",
    "umlaut": u"\u00fcml\u00e4ut",
    "number": 4711,
    "list": [1, "two", {"three": 3.0}],
    "bytes": bytes(range(256)),
    "empty": "",
    "separated": "x" * 700 + "end",
    "large": b"0123456789abcdef" * 50000,
}


def store():
    for key, value in DOCUMENTS.items():
        check("set " + key, client.set(key, value, compress_level=0), True)
    check("set loser", client.set("loser", 1), True)
    check("delete loser", client.delete("loser"), True)
    check("set for a minute", client.set("minute", "soon gone", time=60), True)


def recover():
    for key, value in DOCUMENTS.items():
        check("get " + key, client.get(key), value)
    check("get loser", client.get("loser"), None)
    check("get minute", client.get("minute"), "soon gone")


def everything():
    check("get of nothing", client.get("nothing"), None)
    check("delete of nothing", client.delete("nothing"), True)  # this client says so
    store()
    recover()
    check("get_multi", client.get_multi(list(DOCUMENTS) + ["nothing"]), DOCUMENTS)
    check("set_multi", client.set_multi({"m%d" % i: "v%d" % i for i in range(300)}), [])
    check("get_multi of many", client.get_multi(["m%d" % i for i in range(400)]), {"m%d" % i: "v%d" % i for i in range(300)})
    check("delete_multi", client.delete_multi(["m0", "m299"]), True)
    check("get deleted", client.get("m0"), None)
    check("get kept", client.get("m1"), "v1")

    check("compressed set", client.set("zipped", "z" * 10000, compress_level=9), True)
    check("compressed get", client.get("zipped"), "z" * 10000)

    # CAS
    check("set for cas", client.set("cas", "one"), True)
    value, cas = client.gets("cas")
    check("gets", value, "one")
    if not cas:
        raise SystemExit("gets: the CAS is 0")
    check("cas", client.cas("cas", "two", cas), True)
    check("cas again", client.cas("cas", "three", cas), False)
    check("get after cas", client.get("cas"), "two")
    value, newer = client.gets("cas")
    if newer == cas:
        raise SystemExit("the CAS stayed %r over a write" % cas)
    check("delete with an old cas", client.delete("cas", cas=cas), False)
    check("delete with the cas", client.delete("cas", cas=newer), True)
    check("get after delete", client.get("cas"), None)
    check("cas of nothing", client.cas("cas", "four", newer), False)

    # Expiry: relative, absolute, absolute in the past.
    check("set for two seconds", client.set("brief", "x", time=2), True)
    check("set until a date", client.set("dated", "x", time=int(time.time()) + 2), True)
    check("set until yesterday", client.set("past", "x", time=int(time.time()) - 86400), True)
    check("get past", client.get("past"), None)
    check("get brief at once", client.get("brief"), "x")
    deadline = time.time() + 30
    while client.get("brief") is not None or client.get("dated") is not None:
        if time.time() > deadline:
            raise SystemExit("documents outlive their expiry")
        time.sleep(0.1)

    stats = client.stats()[address]
    for name in ("pid", "uptime", "version", "curr_items", "cmd_get", "cmd_set", "get_hits", "get_misses"):
        if name not in stats:
            raise SystemExit("statistic %s is missing of %r" % (name, sorted(stats)))

    check("flush", client.flush_all(), True)
    check("get after flush", client.get("text"), None)
    check("set after flush", client.set("text", "again"), True)
    check("get after set after flush", client.get("text"), "again")


{"all": everything, "store": store, "recover": recover}[part]()
client.disconnect_all()
print("done", part)
