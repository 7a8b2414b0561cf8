// Package check decides whether a run of the chaos harness kept the promises I1 to I13, and the half of I14 that a
// history can show: that each planned fault fired. It looks at nothing but the history, and knows nothing of the code
// that was tested.
package check
