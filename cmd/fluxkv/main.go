// Command fluxkv serves a store over the memcached binary protocol.
//
//	fluxkv --data-dir ./data --port 11210 --http-port 11211
//
// The first SIGTERM or SIGINT drains: requests that have been read are
// answered, then the store is closed. A second one ends the process at once;
// what was acknowledged is there after the next start either way. Exit status:
// 0 drained, 1 failed, 2 usage.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"fluxkv/internal/admin"
	"fluxkv/lsm"
	"fluxkv/mcbp"
)

// Exit statuses.
const (
	exitDrained = 0
	exitFailed  = 1
	exitUsage   = 2
)

// drainTime bounds how long connections may take to finish.
const drainTime = 10 * time.Second

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		<-signals
		os.Exit(exitFailed)
	}()
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// command is the program; it ends when ctx does.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c config
	lo, po, status, ok := parse(&c, args, stdout, stderr)
	if !ok {
		return status
	}
	if c.version {
		fmt.Fprintln(stdout, versionLine())
		return exitDrained
	}
	setHeapLimits(int64(c.memQuota))
	setProcessors(c.durable, lo.LogInflight)
	log := &eventLog{w: stderr}
	lo.Logf, po.Logf = log.printf, log.printf
	if err := run(ctx, &c, lo, po, stdout, log); err != nil {
		log.printf("%v", err)
		return exitFailed
	}
	return exitDrained
}

// run opens the store, serves it until ctx ends, and closes it.
func run(ctx context.Context, c *config, lo lsm.Options, po mcbp.Options, stdout io.Writer, log *eventLog) (err error) {
	db, err := lsm.OpenContext(ctx, c.dataDir, lo)
	if errors.Is(err, context.Canceled) {
		log.printf("stopped during recovery; nothing was changed")
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	srv, err := mcbp.New(db, po)
	if err != nil {
		return err
	}
	var where []string
	listen := func(network, address string) error {
		a, err := srv.Listen(network, address)
		if err == nil {
			where = append(where, a.String())
		}
		return err
	}
	if err := listen("tcp", c.address(c.port)); err != nil {
		return fmt.Errorf("--port %d: %w", c.port, err)
	}
	if c.unixSocket != "" {
		if err := listen("unix", c.unixSocket); err != nil {
			srv.Close()
			return fmt.Errorf("--unix-socket %s: %w", c.unixSocket, err)
		}
	}
	stopHTTP := func() {}
	if c.httpPort != 0 {
		l, err := net.Listen("tcp", c.address(c.httpPort))
		if err != nil {
			srv.Close()
			return fmt.Errorf("--http-port %d: %w", c.httpPort, err)
		}
		where = append(where, fmt.Sprintf("http://%v/stats", l.Addr()))
		hs := admin.Server(admin.Handler(db, srv))
		go func() {
			if err := hs.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				log.printf("http: %v", err)
			}
		}()
		stopHTTP = func() { hs.Close() }
	}
	defer stopHTTP()
	fmt.Fprintln(stdout, readyLine(c.dataDir, where, db.Stats()))

	served := make(chan error, 1)
	go func() { served <- srv.Serve() }()
	select {
	case err := <-served:
		srv.Close()
		return err
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	if srv.Shutdown(drain) != nil {
		log.printf("connections did not finish in %v and are cut", drainTime)
		srv.Close()
	}
	return <-served
}

// readyLine says where the server listens and what it opened.
func readyLine(dir string, where []string, s lsm.Stats) string {
	mode := "durable"
	if !s.Durable {
		mode = "not durable"
	}
	r := s.Recovery
	found := fmt.Sprintf("recovered %s, %d bytes of log in %.3f s", count(r.Records, "document"), r.Bytes, r.Duration.Seconds())
	if r.Created {
		found = "created"
	}
	return fmt.Sprintf("fluxkv ready on %s; store %s (%s, %d vbuckets, %d kvstores): %s",
		strings.Join(where, ", "), dir, mode, s.VBuckets, s.KVStores, found)
}

func count(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// versionLine says what was built from what.
func versionLine() string {
	line := "fluxkv"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return line
	}
	line += " " + info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			line += " " + s.Value[:min(12, len(s.Value))]
		}
	}
	return line + " (" + info.GoVersion + "; protocol version " + mcbp.Version + ")"
}

// setHeapLimits keeps the Go heap small beside the quota. Documents are outside
// of it: what it holds are the buffers of connections, which are kept, so that
// requests leave next to nothing to collect. With a thousand answers of 1 KB a
// connection under way on a hundred of them these are 70 MB, and garbage may be
// half as much. The environment's GOGC and GOMEMLIMIT win.
func setHeapLimits(quota int64) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(max(512<<20, quota/2))
	}
}

// setProcessors gives a durable server one scheduler slot more for every log
// write in flight: a goroutine in a synced write keeps its slot, and on a small
// machine that is half of them. It was worth 1.2 to 1.5 at 112x128 on two cores;
// more slots cost GETs from memory 15 %. The environment's GOMAXPROCS wins.
func setProcessors(durable bool, inflight int) {
	if durable && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.NumCPU() + inflight)
	}
}
