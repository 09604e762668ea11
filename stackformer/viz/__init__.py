"""stackformer.viz"""
