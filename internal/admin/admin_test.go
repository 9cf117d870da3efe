package admin

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"fluxkv/internal/vfs/memfs"
	"fluxkv/lsm"
	"fluxkv/mcbp"
)

func TestStats(t *testing.T) {
	db, err := lsm.Open("data", lsm.Options{FS: memfs.New(), KVStores: 2, MemQuota: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	srv, err := mcbp.New(db, mcbp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Set([]byte("key"), []byte("value"), lsm.Meta{}); err != nil {
		t.Fatal(err)
	}
	h := Handler(db, srv)
	get := func(method, path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		return w
	}
	w := get("GET", "/stats")
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v", w.Code, w.Header())
	}
	var s Stats
	d := json.NewDecoder(strings.NewReader(w.Body.String()))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		t.Fatalf("%v\n%s", err, w.Body)
	}
	if s.Engine.Writes != 1 || s.Engine.KVStores != 2 || s.Server.Version != mcbp.Version {
		t.Errorf("%+v", s)
	}
	for _, name := range []string{`"durable_seqno"`, `"cmd_get"`, `"recovery"`, `"log"`} {
		if !strings.Contains(w.Body.String(), name) {
			t.Errorf("%s is missing", name)
		}
	}
	if w := get("POST", "/stats"); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
	if w := get("GET", "/debug/pprof/heap"); w.Code != http.StatusOK || w.Body.Len() == 0 {
		t.Errorf("heap profile: %d, %d bytes", w.Code, w.Body.Len())
	}
	if w := get("GET", "/"); w.Code != http.StatusNotFound {
		t.Errorf("/: %d", w.Code)
	}
}
