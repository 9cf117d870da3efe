package sstable

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs/memfs"
)

// parseVersion reads "key#seqno value", "key#seqno DEL" or "key#seqno
// @segment:offset+length", each with [flags=1 expiry=2 datatype=3 cas=4]. A
// value "*300" is 300 bytes, a key "a*300" the letter 300 times.
func parseVersion(line string) (entry.Version, error) {
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return entry.Version{}, errors.New("empty line")
	}
	k, seqno, _ := strings.Cut(fields[0], "#")
	n, err := strconv.ParseUint(seqno, 10, 64)
	if err != nil {
		return entry.Version{}, fmt.Errorf("%q: %w", line, err)
	}
	v := entry.Version{Key: parseKey(k), Seqno: entry.Seqno(n), Value: entry.Value{HasBytes: true, Bytes: []byte{}}}
	for _, f := range fields[1:] {
		name, value, found := strings.Cut(f, "=")
		x, _ := strconv.ParseUint(value, 10, 64)
		switch {
		case f == "DEL":
			v.Kind, v.Value = entry.KindDelete, entry.Value{}
		case f[0] == '@':
			var a entry.Address
			if _, err := fmt.Sscanf(f, "@%d:%d+%d", &a.Segment, &a.Offset, &a.Length); err != nil {
				return v, fmt.Errorf("%q: %w", line, err)
			}
			v.Value = entry.Value{Address: a}
		case f[0] == '*':
			size, _ := strconv.Atoi(f[1:])
			v.Value.Bytes = []byte(strings.Repeat("v", size))
		case !found:
			v.Value.Bytes = []byte(f)
		case name == "flags":
			v.Meta.Flags = uint32(x)
		case name == "expiry":
			v.Meta.Expiry = uint32(x)
		case name == "datatype":
			v.Meta.Datatype = uint8(x)
		case name == "cas":
			v.Meta.CAS = x
		default:
			return v, fmt.Errorf("%q: unknown field %q", line, f)
		}
	}
	return v, nil
}

func parseKey(s string) []byte {
	if letter, times, found := strings.Cut(s, "*"); found {
		n, _ := strconv.Atoi(times)
		s = strings.Repeat(letter, n)
	}
	return key(1, s)
}

// describe writes down what a table consists of.
func describe(r *Reader) (string, error) {
	var out strings.Builder
	p := r.Properties()
	fmt.Fprintf(&out, "entries %d, tombstones %d, key bytes %d, value bytes %d, seqnos %d-%d, filter %d pieces k=%d, %d levels\n",
		p.Entries, p.Tombstones, p.KeyBytes, p.ValueBytes, p.LowestSeqno, p.HighestSeqno, p.Filter.Pieces, p.Filter.Probes, p.IndexLevels)
	fmt.Fprintf(&out, "keys %.20q to %.20q\n", p.Smallest, p.Largest)
	for _, s := range p.Segments {
		fmt.Fprintf(&out, "segment %d: %d documents, %d bytes\n", s.Segment, s.Documents, s.Bytes)
	}
	for _, e := range p.Expiry {
		fmt.Fprintf(&out, "expire by %d: %d entries, %d bytes\n", e.NotAfter, e.Entries, e.Bytes)
	}
	var bufs [indexLevelsMax + 1]Buffer
	err := r.walkIndex(r.base, int(p.IndexLevels)-1, func(level int, ref BlockRef) ([]byte, error) {
		data, err := r.load(ref, &bufs[level+1])
		if err != nil {
			return nil, err
		}
		var c cursor
		if err := c.load(data); err != nil {
			return nil, err
		}
		b := &c.b
		c.set(0)
		first, firstSeqno := fmt.Sprintf("%.20q", c.key[2:]), b.seqno(0)
		c.set(b.count - 1)
		fmt.Fprintf(&out, "%*s%v+%d: %d entries, shape %06b, prefix %d, seqnos of %d bits, %s#%d to %.20q#%d\n",
			2*(int(p.IndexLevels)-1-level), "", ref.Offset, ref.Length, b.count, b.shape, b.prefixBytes, b.seqnoBits,
			first, firstSeqno, c.key[2:], b.seqno(b.count-1))
		return data, nil
	})
	return out.String(), err
}

// TestScripts runs testdata/scripts:
//
//	build [block-bytes= bloom-bits= snappy]   entries; then what the table is
//	get at=                                   keys, one a line
//	scan [lower= upper= seek=key#seqno]       what an iterator returns
//	flip at=                                  one byte; then open, verify and scan
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var fs *memfs.FS
		var r *Reader
		name := "idx/" + Name(testNumber)
		var buf Buffer
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			switch d.Cmd {
			case "build":
				o := testOptions()
				d.MaybeScanArgs(t, "block-bytes", &o.BlockBytes)
				d.MaybeScanArgs(t, "bloom-bits", &o.BloomBits)
				if d.HasArg("snappy") {
					o.Compression = Snappy
				}
				var vs []entry.Version
				for _, line := range strings.Split(d.Input, "\n") {
					v, err := parseVersion(line)
					if err != nil {
						return err.Error()
					}
					vs = append(vs, v)
				}
				fs = newFS(t)
				if err := tryWrite(fs, name, o, vs); err != nil {
					return err.Error() + "\n"
				}
				r = openTable(t, fs, name, true, readerOptions())
				s, err := describe(r)
				if err == nil {
					err = r.Verify()
				}
				if err != nil {
					return err.Error()
				}
				return s
			case "get":
				at := uint64(entry.MaxSeqno)
				d.MaybeScanArgs(t, "at", &at)
				for _, line := range strings.Split(d.Input, "\n") {
					k := parseKey(line)
					var v entry.Version
					found, err := r.Get(hashOf(k), k, entry.Seqno(at), &buf, &v)
					switch {
					case err != nil:
						fmt.Fprintln(&out, err)
					case !found:
						fmt.Fprintln(&out, "not found")
					default:
						fmt.Fprintln(&out, show(&v))
					}
				}
			case "scan":
				var lower, upper, seek string
				d.MaybeScanArgs(t, "lower", &lower)
				d.MaybeScanArgs(t, "upper", &upper)
				d.MaybeScanArgs(t, "seek", &seek)
				var o IterOptions
				if lower != "" {
					o.Lower = parseKey(lower)
				}
				if upper != "" {
					o.Upper = parseKey(upper)
				}
				it := r.NewIter(o)
				defer it.Close()
				ok := false
				if seek != "" {
					v, err := parseVersion(seek)
					if err != nil {
						return err.Error()
					}
					ok = it.SeekGE(v.Key, v.Seqno)
				} else {
					ok = it.First()
				}
				for ; ok; ok = it.Next() {
					fmt.Fprintln(&out, show(it.Version()))
				}
				if err := it.Error(); err != nil {
					fmt.Fprintln(&out, err)
				} else {
					fmt.Fprintln(&out, "end")
				}
			case "flip":
				var at int
				d.ScanArgs(t, "at", &at)
				b := image(t, fs, name)
				b[(at+len(b))%len(b)] ^= 0x10
				r, err := Open(&imageFile{name: name, data: b}, readerOptions())
				if err != nil {
					return err.Error() + "\n"
				}
				fmt.Fprintln(&out, "verify:", r.Verify())
				it := r.NewIter(IterOptions{})
				n := 0
				for ok := it.First(); ok; ok = it.Next() {
					n++
				}
				fmt.Fprintf(&out, "scan: %d entries, %v\n", n, it.Error())
				it.Close()
				r.Close()
			default:
				return "unknown command"
			}
			return out.String()
		})
		buf.Free()
	})
}

func tryWrite(fs *memfs.FS, name string, o WriterOptions, vs []entry.Version) error {
	return writeTo(fs, name, o, vs, func(v *entry.Version) uint64 { return hashOf(v.Key) })
}
