package history

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
)

// Save writes what was harvested when all was quiet to a file, in the place of what the file held. The attempts and
// the writes are left out, because their files have them already: [Read] of those and of this one gives the whole run
// again, so that a run that was kept can be checked once more.
func Save(path string, run *Run) error {
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		return fmt.Errorf("history: make the file to save to: %w", err)
	}
	r, err := NewRecorder(path)
	if err != nil {
		return err
	}
	for _, l := range harvested(run) {
		if err := r.write(&l); err != nil {
			return errors.Join(err, r.Close())
		}
	}
	return r.Close()
}

// harvested are the lines of what was there when all was quiet.
func harvested(run *Run) []line {
	var lines []line
	for i := range run.Records {
		lines = append(lines, line{Record: &run.Records[i]})
	}
	for i := range run.Effects {
		lines = append(lines, line{Effect: &run.Effects[i]})
	}
	for i := range run.Rows {
		lines = append(lines, line{Row: &run.Rows[i]})
	}
	for i := range run.Stock {
		lines = append(lines, line{Stock: &run.Stock[i]})
	}
	for i := range run.Messages {
		lines = append(lines, line{Message: &run.Messages[i]})
	}
	for i := range run.Audits {
		lines = append(lines, line{Audit: &run.Audits[i]})
	}
	for i := range run.Steps {
		lines = append(lines, line{Step: &run.Steps[i]})
	}
	for i := range run.FailOvers {
		lines = append(lines, line{FailOver: &run.FailOvers[i]})
	}
	for i := range run.FrontLosses {
		lines = append(lines, line{FrontLoss: &run.FrontLosses[i]})
	}
	for i := range run.Slots {
		lines = append(lines, line{Slot: &run.Slots[i]})
	}
	for _, name := range slices.Sorted(maps.Keys(run.Faults)) {
		lines = append(lines, line{Fault: &fault{name, run.Faults[name]}})
	}
	for _, name := range run.Planned {
		lines = append(lines, line{Planned: name})
	}
	if run.Unsettled {
		lines = append(lines, line{Unsettled: true})
	}
	return lines
}
