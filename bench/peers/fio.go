package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// fioFigures is what fio got of the device alone.
type fioFigures struct {
	Rate       float64 // reads/s
	P50        float64 // microseconds
	CPUSeconds float64
	Reads      int64
}

// fioFile writes a file of so many bytes, past the page cache: blocks that were
// never written are not read from the device.
func fioFile(file string, size int64) error {
	_, err := fioOutput("--name=fill", "--filename="+file, "--rw=write", "--bs=1M", "--direct=1", "--end_fsync=1", "--refill_buffers",
		fmt.Sprintf("--size=%d", (size+1<<20-1)>>20<<20))
	return err
}

// fioReads times random direct reads of 4 KiB, so many in flight.
func fioReads(file string, depth int, runtime time.Duration) (f fioFigures, err error) {
	out, err := fioOutput("--name=reads", "--filename="+file, "--rw=randread", "--bs=4k", "--direct=1", "--ioengine=io_uring",
		fmt.Sprintf("--iodepth=%d", depth), "--time_based", fmt.Sprintf("--runtime=%d", max(int(runtime/time.Second), 1)), "--norandommap")
	if err != nil {
		return f, err
	}
	return parseFio(out)
}

func fioOutput(args ...string) ([]byte, error) {
	cmd := exec.Command("fio", append(args, "--output-format=json")...)
	stderr := &lastBytes{}
	cmd.Stderr = stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("fio: %w: %s%s", err, out[max(len(out)-lastBytesMax, 0):], stderr.b)
	}
	return out, nil
}

// parseFio reads the report of one job.
func parseFio(out []byte) (f fioFigures, err error) {
	var report struct {
		Jobs []struct {
			Error int `json:"error"`
			Read  struct {
				Rate  float64 `json:"iops"`
				Reads int64   `json:"total_ios"`
				Clat  struct {
					Percentile map[string]float64 `json:"percentile"`
				} `json:"clat_ns"`
				Runtime float64 `json:"runtime"` // ms
			} `json:"read"`
			User   float64 `json:"usr_cpu"` // per cent
			System float64 `json:"sys_cpu"`
		} `json:"jobs"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return f, fmt.Errorf("fio: %w", err)
	}
	if len(report.Jobs) != 1 || report.Jobs[0].Error != 0 || report.Jobs[0].Read.Reads == 0 {
		return f, errors.New("fio: its report has not one job that read and had no error")
	}
	j := &report.Jobs[0]
	f.Rate, f.Reads, f.P50 = j.Read.Rate, j.Read.Reads, j.Read.Clat.Percentile["50.000000"]/1e3
	f.CPUSeconds = (j.User + j.System) / 100 * j.Read.Runtime / 1e3
	return f, nil
}

// haveFio says whether there is a fio to start.
func haveFio() bool {
	_, err := exec.LookPath("fio")
	return err == nil
}

// removeFile removes a file that may be gone.
func removeFile(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
