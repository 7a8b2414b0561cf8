package postgres

// statements are the texts of this package with the names of the tables put in.
type statements struct {
	moment, lockRecord, insertRecord, updateRecord, deleteRecord, notify, get string

	claim, lookUp, insertAnswer, replaceAnswer, wait string
}

func prepareStatements(n names) statements {
	return statements{
		moment: n.render(selectMoment), lockRecord: n.render(lockRecord), insertRecord: n.render(insertRecord),
		updateRecord: n.render(updateRecord), deleteRecord: n.render(deleteRecord), notify: n.render(notifyWaiter),
		get: n.render(getRecord),

		lookUp: n.render(lookUp), insertAnswer: n.render(insertAnswer), replaceAnswer: n.render(replaceAnswer),
	}
}
