#!lua flags=allow-oom
-- Write an event that no other script writes.
-- Arguments: name, owner or '', data JSON
-- Answers nothing
emit(ARG[1], ARG[2], ARG[3])
return answer(0, false)
