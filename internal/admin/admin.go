// Package admin shows operators over HTTP what the engine and the protocol
// server know about themselves. The two expose plain structs; only this
// package knows HTTP.
//
//	GET /stats         {"engine": lsm.Stats, "server": mcbp.Stats} as JSON
//	GET /debug/pprof/  profiles of the process, as net/http/pprof has them
//
// There is no authentication: it belongs on the loopback interface.
package admin

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"time"

	"fluxkv/lsm"
	"fluxkv/mcbp"
)

// Stats is what /stats answers.
type Stats struct {
	Engine lsm.Stats  `json:"engine"`
	Server mcbp.Stats `json:"server"`
}

// Handler answers the operators' requests about one store and its server. It
// is safe for concurrent use and may outlive both: counters of a closed store
// are zero.
func Handler(db *lsm.DB, srv *mcbp.Server) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		b, err := json.MarshalIndent(Stats{Engine: db.Stats(), Server: srv.Stats()}, "", "  ")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(b, '\n')) // the client may be gone
	})
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// Server returns an HTTP server for h with bounds on what a client may hold
// up. The caller gives it a listener and ends it.
func Server(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      90 * time.Second, // a profile takes 30 s unless told otherwise
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
}
