package mcbp

func (p *pipeline) stat(*session) {}
