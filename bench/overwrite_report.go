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
	{"fixed", func(r *OverwriteRow) string { return megabytes(r.Fixed) }},
	{"SA", func(r *OverwriteRow) string { return over(r.Disk, r.Live) }},
	{"group", func(r *OverwriteRow) string { return orNone(r.Group, Count(r.Group)) }},
	{"slowed s", func(r *OverwriteRow) string { return fmt.Sprintf("%.2f", r.SlowedTime.Seconds()) }},
	{"stalled s", func(r *OverwriteRow) string { return fmt.Sprintf("%.2f", r.StalledTime.Seconds()) }},
	{"valid", func(r *OverwriteRow) string {
		if r.Invalid != "" {
			return "NO: " + r.Invalid
		}
		return "yes"
	}},
}

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
// keys and values, in two lines.
func (r *OverwriteRow) WriteSummary(w io.Writer) error {
	per := func(n int64) string { return over(n, r.UserBytes) }
	state := ""
	if r.Invalid != "" {
		state = "; NOT VALID: " + r.Invalid
	}
	x := &r.Written
	_, err := fmt.Fprintf(w, `second half: %s SETs/s, worst second %s; write amp %s (device), %s (process), %s (engine); space amp %.2f mean, %s most, %s settled; group %s%s
per user byte: log %s, padding %s, zeros %s, footers %s, flush %s, merges %s, gc %s, manifest %s; of du: live %s MB, garbage %s MB, fixed %s MB
`,
		Count(r.Rate), orNone(r.Worst, Count(r.Worst)), per(r.Device), per(r.Process), per(r.Engine),
		r.DiskMean/float64(max(r.Live, 1)), over(r.DiskMax, r.Live), over(r.Disk, r.Live), Count(r.Group), state,
		per(x.Log), per(x.LogPadding), per(x.LogPrewrite), per(x.LogFooters), per(x.Flush), levels(x.Compaction, per), per(x.GC), per(x.Manifest),
		megabytes(r.Live), megabytes(r.Disk-r.Live-r.Fixed), megabytes(r.Fixed))
	return err
}
