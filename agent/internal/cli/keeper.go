package cli

// keeper waits. The keeper container runs this between captures, since it costs a tenth of an idle interpreter.
func keeper() error {
	<-stops()
	return nil
}
