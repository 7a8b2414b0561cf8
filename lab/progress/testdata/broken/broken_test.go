package broken

var _ = notThere
