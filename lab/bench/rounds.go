package main

import (
	"cmp"
	"slices"
)

// series holds what each contender reached in each round, by name.
type series map[string][]float64

func (s series) add(name string, value float64) { s[name] = append(s[name], value) }

// median is the typical round of a contender.
func (s series) median(name string) float64 { return median(s[name]) }

// ratio is the median over the rounds of one contender against the best of some rivals in the same round.
func (s series) ratio(name string, rivals ...string) float64 {
	ratios := make([]float64, len(s[name]))
	for round, value := range s[name] {
		best := 0.0
		for _, rival := range rivals {
			best = max(best, s[rival][round])
		}
		ratios[round] = value / best
	}
	return median(ratios)
}

// median returns the middle value, or the mean of the two in the middle.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.SortedFunc(slices.Values(values), cmp.Compare[float64])
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
