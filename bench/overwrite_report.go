package bench

import (
	"fmt"
	"io"
	"strings"
)

// overwriteColumns are the columns of a row, in order.
var overwriteColumns = []struct {
	name string
	text func(r *OverwriteRow) string
}{
	{"window", func(r *OverwriteRow) string { return r.Name }},
	{"seconds", func(r *OverwriteRow) string { return fmt.Sprintf("%.1f", r.Seconds) }},
	{"SETs/s", func(r *OverwriteRow) string { return orNone(r.Rate, Count(r.Rate)) }},
	{"worst second", func(r *OverwriteRow) string { return orNone(r.Worst, Count(r.Worst)) }},
	{"longest stall ms", func(r *OverwriteRow) string { return orNone(r.Stall, fmt.Sprintf("%.0f", r.Stall*1e3)) }},
	{"p99, max ms", func(r *OverwriteRow) string { return orNone(r.Max, fmt.Sprintf("%.1f, %.0f", r.P99/1e3, r.Max/1e3)) }},
	{"ingest MB/s", func(r *OverwriteRow) string {
		if r.UserBytes == 0 || r.Seconds == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f", r.Rate*float64(r.UserBytes)/float64(r.Operations)/1e6)
	}},
	{"device MB", func(r *OverwriteRow) string { return megabytes(r.Device) }},
	{"process MB", func(r *OverwriteRow) string { return megabytes(r.Process) }},
	{"engine MB", func(r *OverwriteRow) string { return megabytes(r.Engine) }},
	{"log", func(r *OverwriteRow) string { return megabytes(r.Written.Log) }},
	{"padding", func(r *OverwriteRow) string { return megabytes(r.Written.LogPadding) }},
	{"zeros", func(r *OverwriteRow) string { return megabytes(r.Written.LogPrewrite) }},
	{"footers", func(r *OverwriteRow) string { return megabytes(r.Written.LogFooters) }},
	{"flush", func(r *OverwriteRow) string { return megabytes(r.Written.Flush) }},
	{"merges", func(r *OverwriteRow) string { return levels(r.Written.Compaction, megabytes) }},
	{"gc", func(r *OverwriteRow) string { return megabytes(r.Written.GC) }},
	{"manifest", func(r *OverwriteRow) string { return megabytes(r.Written.Manifest) }},
	{"WA device", func(r *OverwriteRow) string { return over(r.Device, r.UserBytes) }},
	{"WA engine", func(r *OverwriteRow) string { return over(r.Engine, r.UserBytes) }},
	{"du MB", func(r *OverwriteRow) string { return megabytes(r.Disk) }},
	{"garbage", func(r *OverwriteRow) string { return megabytes(r.garbage()) }},
	{"fixed", func(r *OverwriteRow) string { return megabytes(r.Fixed.total()) }},
	{"SA", func(r *OverwriteRow) string { return over(r.Disk, r.Live) }},
	{"SA peak", func(r *OverwriteRow) string { return over(r.DiskMax, r.Live) }},
	{"group", func(r *OverwriteRow) string { return orNone(r.Group, Count(r.Group)) }},
	{"slowed s", func(r *OverwriteRow) string { return fmt.Sprintf("%.2f", r.HeldUp.Slowed.Seconds()) }},
	{"stalled s", func(r *OverwriteRow) string { return fmt.Sprintf("%.2f", r.HeldUp.Stalled.Seconds()) }},
	{"paced s", func(r *OverwriteRow) string { return fmt.Sprintf("%.2f", r.HeldUp.Paced.Seconds()) }},
	{"log s", func(r *OverwriteRow) string { return fmt.Sprintf("%.2f", r.HeldUp.Log.Seconds()) }},
	{"segment s", func(r *OverwriteRow) string { return fmt.Sprintf("%.2f", r.HeldUp.Segment.Seconds()) }},
	{"valid", func(r *OverwriteRow) string {
		if r.Invalid != "" {
			return "NO: " + r.Invalid
		}
		return "yes"
	}},
}

// garbage is what the directory takes beside what is live and what is fixed: dead
// documents, and what tables and records have over keys and values. What is live
// may lie in the active segment, which is fixed: in small stores this is below 0.
func (r *OverwriteRow) garbage() int64 { return r.Disk - r.Live - r.Fixed.total() }

func megabytes(n int64) string { return fmt.Sprintf("%.1f", float64(n)/1e6) }

func orNone(x float64, text string) string {
	if x == 0 {
		return "-"
	}
	return text
}

func over(n, user int64) string {
	if user == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", float64(n)/float64(user))
}

// levels writes what was written to each level that something was written to.
func levels(bytes []int64, text func(int64) string) string {
	var b []string
	for level, n := range bytes {
		if n > 0 {
			b = append(b, fmt.Sprintf("L%d %s", level, text(n)))
		}
	}
	if len(b) == 0 {
		return "0.0"
	}
	return strings.Join(b, " ")
}

// WriteOverwriteHeader writes the head of the table that WriteText has the rows
// of.
func WriteOverwriteHeader(w io.Writer) error {
	var names []string
	for _, c := range overwriteColumns {
		names = append(names, c.name)
	}
	_, err := fmt.Fprintf(w, "| %s |\n|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	return err
}

// WriteText writes the row as a line of a table.
func (r *OverwriteRow) WriteText(w io.Writer) error {
	var cells []string
	for _, c := range overwriteColumns {
		cells = append(cells, c.text(r))
	}
	_, err := fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
	return err
}

// WriteSummary writes what a row says, and its bytes by cause for each byte of
// keys and values, in four lines.
func (r *OverwriteRow) WriteSummary(w io.Writer) error {
	per := func(n int64) string { return over(n, r.UserBytes) }
	valid := "yes"
	if r.Invalid != "" {
		valid = "NO: " + r.Invalid
	}
	worst := "-"
	if r.Worst > 0 && r.Rate > 0 {
		worst = fmt.Sprintf("%s (%.2f of the mean)", Count(r.Worst), r.Worst/r.Rate)
	}
	x, h, f := &r.Written, &r.HeldUp, &r.Fixed
	_, err := fmt.Fprintf(w, `second half: write amp %s (device), %s (process), %s (engine); space amp %.2f mean, %s peak, %s settled, after %.1f s; group %s; valid: %s
rate: %s SETs/s, worst second %s, longest stall %.0f ms; slowest SET %.0f ms, p99 of the worst window %.1f ms; %d flushes, %d merges, %d collections
per user byte: log %s, padding %s, zeros %s, footers %s, flush %s, merges %s, gc %s, manifest %s
du settled %s MB: live %s, garbage %s, fixed %s (active %s, prepared %s, pooled %s, manifest %s); writers held up, s: write cache or merges %.2f, write cache full %.2f, space %.2f, log %.2f, segment %.2f
`,
		per(r.Device), per(r.Process), per(r.Engine), r.DiskMean/float64(max(r.Live, 1)), over(r.DiskMax, r.Live), over(r.Disk, r.Live), r.Settle, Count(r.Group), valid,
		Count(r.Rate), worst, r.Stall*1e3, r.Max/1e3, r.P99/1e3, r.Flushes, r.Merges, r.Collections,
		per(x.Log), per(x.LogPadding), per(x.LogPrewrite), per(x.LogFooters), per(x.Flush), levels(x.Compaction, per), per(x.GC), per(x.Manifest),
		megabytes(r.Disk), megabytes(r.Live), megabytes(r.garbage()), megabytes(f.total()), megabytes(f.Active), megabytes(f.Prepared), megabytes(f.Pooled), megabytes(f.Manifest),
		h.Slowed.Seconds(), h.Stalled.Seconds(), h.Paced.Seconds(), h.Log.Seconds(), h.Segment.Seconds())
	return err
}
