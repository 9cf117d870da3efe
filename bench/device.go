package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"
	"unsafe"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// deviceBlockBytes is the size of one synced write: what the smallest durable
// group of a server costs the disk.
const deviceBlockBytes = 4096

// DeviceOptions configures Device. The zero value of a field means its
// default.
type DeviceOptions struct {
	// Dir is where the file is made; it is removed at the end. Required.
	Dir string
	// Runtime is how long writes are counted. Default 5 s.
	Runtime time.Duration
	// FileBytes is the length of the file, rounded up to whole blocks of 1
	// MiB. Default 64 MiB, at most 64 GiB.
	FileBytes int64
}

// DeviceReport is what the disk did with one synced 4 KiB write in flight.
type DeviceReport struct {
	Machine Machine  `json:"machine"`
	Dir     string   `json:"dir"`
	Method  string   `json:"method"`
	Writes  int64    `json:"writes"`
	Seconds float64  `json:"seconds"`
	Rate    float64  `json:"per_second"`
	Latency *Latency `json:"latency"`
	CPU     *CPU     `json:"cpu"`
}

// Device measures synced direct overwrites of 4 KiB, one in flight, in order
// through a file whose blocks were all written before. It is the yardstick of
// durable writes: no server that answers after its sync can commit more
// groups a second with one write in flight. It fails where the file system
// does not do direct I/O, because a figure through the page cache would
// measure something else.
func Device(ctx context.Context, o DeviceOptions) (_ *DeviceReport, err error) {
	if o.Dir == "" {
		return nil, errors.New("device: no directory")
	}
	if o.Runtime == 0 {
		o.Runtime = 5 * time.Second
	}
	if o.FileBytes == 0 {
		o.FileBytes = 64 << 20
	}
	if o.Runtime < 0 || o.FileBytes < 0 || o.FileBytes > 64<<30 {
		return nil, fmt.Errorf("device: runtime %v, file of %d bytes: out of bounds", o.Runtime, o.FileBytes)
	}
	const chunk = 1 << 20
	size := (o.FileBytes + chunk - 1) &^ (chunk - 1)

	path := filepath.Join(o.Dir, fmt.Sprintf("device-%d.tmp", os.Getpid()))
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_DIRECT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("device: open %s for direct I/O: %w", path, err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd), os.Remove(path)) }()

	if err := unix.Fallocate(fd, 0, 0, size); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return nil, fmt.Errorf("device: allocate %d bytes: %w", size, err)
	}
	buf, err := unix.Mmap(-1, 0, chunk, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("device: buffer: %w", err)
	}
	defer unix.Munmap(buf)
	for i := 0; i < len(buf); i += 8 {
		*(*uint64)(unsafe.Pointer(&buf[i])) = mix64(uint64(i))
	}
	for at := int64(0); at < size; at += chunk {
		if err := writeAll(fd, buf, at, 0); err != nil {
			return nil, fmt.Errorf("device: first write: %w", err)
		}
	}
	if err := unix.Fsync(fd); err != nil {
		return nil, fmt.Errorf("device: sync: %w", err)
	}

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	h := hdrhistogram.New(latencyMinNanos, latencyMaxNanos, latencyDigits)
	block := buf[:deviceBlockBytes]
	cpu, began := selfCPU(), time.Now()
	var writes, at int64
	var elapsed time.Duration
	for elapsed < o.Runtime && ctx.Err() == nil {
		block[0]++
		before := elapsed
		if err := writeAll(fd, block, at, unix.RWF_DSYNC); err != nil {
			return nil, fmt.Errorf("device: synced write: %w", err)
		}
		elapsed = time.Since(began)
		_ = h.RecordValue(min(int64(elapsed-before), latencyMaxNanos)) // in range
		writes++
		if at += deviceBlockBytes; at == size {
			at = 0
		}
	}
	r := &DeviceReport{
		Machine: thisMachine(), Dir: o.Dir, Method: "O_DIRECT, pwritev2 RWF_DSYNC, 4 KiB, 1 in flight, sequential overwrite",
		Writes: writes, Seconds: elapsed.Seconds(), Latency: newLatency(h),
	}
	if writes > 0 {
		r.Rate = float64(writes) / r.Seconds
		r.CPU = newCPU(selfCPU()-cpu, writes, r.Seconds)
	}
	return r, nil
}

// writeAll writes b at offset. A short write would be measured as a fast one,
// so it is an error.
func writeAll(fd int, b []byte, offset int64, flags int) error {
	for {
		n, err := unix.Pwritev2(fd, [][]byte{b}, offset, flags)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n != len(b):
			return fmt.Errorf("%d of %d bytes: %w", n, len(b), io.ErrShortWrite)
		}
		return nil
	}
}

// WriteJSON writes the report as one indented JSON object.
func (r *DeviceReport) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText writes the report for people.
func (r *DeviceReport) WriteText(w io.Writer) error {
	if r.Latency == nil {
		_, err := fmt.Fprintf(w, "device    no write finished\n")
		return err
	}
	l := r.Latency
	_, err := fmt.Fprintf(w, "device    %s synced writes/s (%s)\nlatency   mean %s  p50 %s  p90 %s  p99 %s  p99.9 %s  max %s us\n",
		Count(r.Rate), r.Method, Count(l.Mean), Count(l.P50), Count(l.P90), Count(l.P99), Count(l.P999), Count(l.P100))
	return err
}

// WriteLine writes rate, p50 and p99 in the columns of LineHeader.
func (r *DeviceReport) WriteLine(w io.Writer) error {
	l := r.Latency
	if l == nil {
		l = &Latency{}
	}
	_, err := fmt.Fprintf(w, "%.0f\t%.1f\t%.1f\t0\t0\t0\t0\n", r.Rate, l.P50, l.P99)
	return err
}
