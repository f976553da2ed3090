-- Give queued tasks to workers; only the leader may.
-- Arguments: fence, assignments {id, attempt so far, worker, its epoch, placement JSON}
-- Answers false for who does not lead, else per assignment {params, correlation id} or {why not}
local fence, assignments = ARG[1], ARG[2]
if not leads(fence) then return answer(fence, false) end
return answer(fence, assign(assignments))
