package doctor

// Granted are the rights that the doctor expects.
var Granted = granted
