SELECT count(*), sum(p.id) FROM spans q JOIN stays p ON p.start <= q.stop AND p.stop >= q.start
